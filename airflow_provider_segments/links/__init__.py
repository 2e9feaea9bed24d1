"""Links from Airflow's tasks to the page."""
