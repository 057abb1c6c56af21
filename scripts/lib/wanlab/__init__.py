"""The WAN lab: hosts as network namespaces on this machine, joined by links with rate, delay, queue and loss."""
