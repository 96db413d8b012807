"""Figures that the papers print, as they print them."""

TABLE_6 = {1: (416.47, 65.42), 8: (276.67, 88.37), 32: (324.10, 96.97), 64: (254.64, 130.18), 128: (170.16, 154.02)}
"""Wall seconds and tokens/s by batch size: SpecCoT on two H100, GSM8K, number of problems not given."""
TABLE_6_PROBLEMS = 128
"""At least the largest batch; 128 of table 2's 239.1 tokens (target RQwen-32B) are 30,605, its wall times times its rates
24,450 to 33,149."""
