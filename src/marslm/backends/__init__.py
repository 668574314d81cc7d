"""Other engines that MARS runs inside."""
