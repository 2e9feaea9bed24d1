"""The engine without Spark: builds pushes whose input fits one worker, in the process that asks for it."""
