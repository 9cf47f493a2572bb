"""The methods that FedGrEM is compared with."""
