"""Tables of immutable segments: metadata in ZooKeeper, data in an object store. Knows neither Airflow nor Spark."""
