"""Tian, Weng and Feng (2024): experiments of FedGrEM and what it is compared with."""
