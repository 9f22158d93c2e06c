"""Reports on a running loader: bottleneck, timeline."""
