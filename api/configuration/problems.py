"""What is wrong with a configuration file; a module of its own, so that commands need load nothing else."""


class DocumentProblem(Exception):
    """A document cannot be meant; says where and why, never a secret."""
