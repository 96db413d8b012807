def predicted(m):
    return []
