"""One to four replicas of the server under Ray Serve, with one speed knob for all of them.

pip install 'marslm[ray,demo]'
cd examples && serve run serve_ray:app
"""

import marslm
from marslm.engine.async_engine import AsyncEngine
from marslm.serve.config import ServeConfig
from marslm.serve.ray_app import application


def make_engine() -> AsyncEngine:
    """Each replica calls this once."""
    return AsyncEngine(marslm.Engine(marslm.load("smollm2"), slots=8))


app = application(
    make_engine,
    ServeConfig(model_name="smollm2"),
    autoscaling_config={"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 6},
    ray_actor_options={"num_cpus": 2},
)
