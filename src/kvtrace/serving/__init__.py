"""What serving takes: hardware, schedulers, routers, time, money, the plan."""
