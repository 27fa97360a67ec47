"""How is a process started, recognised, watched and ended?"""
