"""The gateway: stands before one inference engine, moves it from version to version, and says which one answered."""
