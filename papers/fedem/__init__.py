"""Dieuleveut, Fort, Moulines and Robin (2021): experiments of FedEM, and those of our EM."""
