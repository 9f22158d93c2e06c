"""Work elsewhere: how code and data travel, and the tasks of executors."""
