"""spark-submit upsert_segments.py --help"""

import sys

from airflow_provider_segments.spark.upsert import main

if __name__ == "__main__":
    sys.exit(main())
