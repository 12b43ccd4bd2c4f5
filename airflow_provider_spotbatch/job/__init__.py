"""Pure values that the Airflow side and the agent share. Standard library only."""
