"""spark-submit compare_regions.py --help"""

import sys

from airflow_provider_segments.spark.leapfrog import main

if __name__ == "__main__":
    sys.exit(main())
