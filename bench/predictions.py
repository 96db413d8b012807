def predicted(m): return []
