"""Response of the score as patches or pixels are removed or added, by protocols other than insertion and deletion."""
