"""Task groups: several operators wired the way they belong together."""
