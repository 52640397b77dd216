"""What a graph's results are to autograd, where AOTAutograd makes them something else."""
