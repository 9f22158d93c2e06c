"""Sources of the rows of other datasets: joined, cut into windows, or made into other examples."""
