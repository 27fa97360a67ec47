"""Training code in the shapes of the frameworks' own tutorials: does it resume exactly with a few lines added?"""
