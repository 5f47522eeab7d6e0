"""Why quantization starts to hurt: measurements that the paper leaves open (sections 4.4 and 6)."""
