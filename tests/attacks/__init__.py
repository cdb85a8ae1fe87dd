"""What attackers try: to find what a log said in what a run leaves behind."""
