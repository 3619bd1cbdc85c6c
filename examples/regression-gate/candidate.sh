# Simpler and faster than the released agent. What could go wrong?
tr A-Z a-z <input.txt >output.txt
