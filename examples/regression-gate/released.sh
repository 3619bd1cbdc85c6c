# Writes the input in lower case, without spaces around it. The working directory is the workspace.
tr A-Z a-z <input.txt | sed 's/^ *//; s/ *$//' >output.txt
