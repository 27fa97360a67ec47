"""What does a browser get? Static files, and a stream of what changes; everything else the page asks of the API.

May import the commands. The files in static/ are HTML, CSS and JavaScript modules as a browser takes them.
"""
