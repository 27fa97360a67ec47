"""Why did it die, in one line? What is known of a death goes in, one diagnosis comes out. Imports only `failures`.

`evidence` is what a death leaves behind, `output` reads what the program printed, `kernel_lines` what the kernel
logged; `rules` is the table, `kinds` has the words, and `diagnose` applies both. `Cause` (`failures/restart.py`)
decides what follows; a diagnosis is what people read first, and refines a cause only where that is certain.
"""
