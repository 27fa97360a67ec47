"""How much memory, CPU time and GPU do processes use, how are they limited, and did the kernel kill one for memory?"""
