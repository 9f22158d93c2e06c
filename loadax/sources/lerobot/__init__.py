"""Reads folders of LeRobot datasets."""
