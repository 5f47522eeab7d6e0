"""What a row of a measured table is about, whatever the quantizers are called."""

FP32 = "fp32"  # the model as it is
LOW_BIT = "low_bit"  # the quantizer whose collapse is audited
HIGH_BIT = "high_bit"  # the quantizer it is held against
