"""spark-submit build_segments.py --help"""

import sys

from airflow_provider_segments.spark.build import main

if __name__ == "__main__":
    sys.exit(main())
