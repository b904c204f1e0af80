"""The transport against real servers of other makers, each as a process."""
