"""``python3 dev.py example workers``: serves the application with four workers; takes the options of uvicorn."""

import sys

from uvicorn.main import main

if __name__ == "__main__":
    main(["examples.workers.app:app", "--workers", "4", *sys.argv[1:]])
