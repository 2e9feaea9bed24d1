"""spark-submit compact_segments.py --help"""

import sys

from airflow_provider_segments.spark.compact import main

if __name__ == "__main__":
    sys.exit(main())
