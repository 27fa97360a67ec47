"""How the class of a section describes its keys, and how texts become checked values. Imports ini and protocol only."""
