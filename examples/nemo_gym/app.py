"""The resources server that NeMo Gym starts: copy this folder to `resources_servers/stillweb` of a project.

gym env start "+config_paths=[resources_servers/stillweb/stillweb.yaml,...]"
"""

from __future__ import annotations

from stillweb.trainers.nemo_gym import StillwebServer

if __name__ == "__main__":
    StillwebServer.run_webserver()
