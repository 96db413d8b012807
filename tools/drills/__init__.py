"""Faults that strike runs, one module for what they strike, and what they leave: a `Toll`.

    signals         the process: killed, stopped, suspended
    disk            the file system: full
    surroundings    the input, a second run, the streams
    servers         the engines: servers that misbehave

A `Ground` is what is struck: runs on engines that answer the same twice, and are compared with an undisturbed run, or on
engines that never do. Tests ask for a few faults of each kind, `bench/reliability.py` for many.
"""
