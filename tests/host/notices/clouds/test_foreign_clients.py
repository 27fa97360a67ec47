"""The metadata server of these tests is right: clients that are not ours say so."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.host.notices.metadata_server import MetadataServer

pytestmark = pytest.mark.integration

NODE_PACKAGES = ("gcp-metadata@8.1.4", "@aws-sdk/ec2-metadata-service@3.1162.0")


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """This process's environment and `environment`, less what would lead a client elsewhere."""
    return {key: value for key, value in os.environ.items() if "PROXY" not in key.upper()} | dict(environment)


async def run_python(script: str, environment: Mapping[str, str], *arguments: str) -> str:
    """What a script prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, *arguments, env=without_proxies(environment), stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return output.decode()


# --- botocore --------------------------------------------------------------------------------------------------------

BOTOCORE = """
import json, sys
from botocore.utils import InstanceMetadataFetcher
fetcher = InstanceMetadataFetcher(
    timeout=20, num_attempts=1, base_url=sys.argv[1], config={"ec2_metadata_v1_disabled": True}
)
print(json.dumps(fetcher.retrieve_iam_role_credentials()))
"""


TOKEN = """
import sys, urllib.error, urllib.request
headers = {"X-aws-ec2-metadata-token-ttl-seconds": sys.argv[2]} if sys.argv[2] else {}
try:
    print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="PUT", headers=headers), timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


async def test_botocore_gets_its_credentials_with_a_token(server: MetadataServer) -> None:
    credentials = json.loads(await run_python(BOTOCORE, {}, server.base))

    assert credentials["access_key"] == "ASIAEXAMPLE"
    assert server.requests == [
        "PUT /latest/api/token 200",
        "GET /latest/meta-data/iam/security-credentials/ 200",
        "GET /latest/meta-data/iam/security-credentials/trainer-role 200",
    ]


@pytest.mark.parametrize(("ttl", "status"), [("0", 400), ("21601", 400), ("", 400), ("x", 400), ("21600", 200)])
async def test_token_has_the_limits_that_aws_documents(ttl: str, status: int, server: MetadataServer) -> None:
    assert (await run_python(TOKEN, {}, f"{server.base}/latest/api/token", ttl)).split() == [str(status)]


# --- ec2-metadata, which reads spot interruptions --------------------------------------------------------------------

EC2_METADATA = """
import json, sys
from ec2_metadata import EC2Metadata
client = EC2Metadata()
client.service_url = sys.argv[1] + "/latest/"
client.metadata_url = client.service_url + "meta-data/"
action = client.spot_instance_action
print(json.dumps({
    "action": action and [action.action, action.time.isoformat()],
    "lifecycle": client.autoscaling_target_lifecycle_state,
}))
"""


@pytest.mark.parametrize(
    ("spot", "action"),
    [
        (None, None),
        ({"action": "terminate", "time": "2026-11-21T00:51:52Z"}, ["terminate", "2026-11-21T00:51:52+00:00"]),
    ],
)
async def test_ec2_metadata_reads_an_interruption_and_none(
    spot: dict[str, str] | None, action: list[str] | None, server: MetadataServer
) -> None:
    pytest.importorskip("ec2_metadata", reason="the package ec2-metadata is not installed")
    server.spot, server.lifecycle = spot, "Terminated"

    assert json.loads(await run_python(EC2_METADATA, {}, server.base)) == {"action": action, "lifecycle": "Terminated"}
    assert server.tokens_made == 1


# --- google-auth -----------------------------------------------------------------------------------------------------

GOOGLE_AUTH = """
import json
import google.auth.transport.requests
from google.auth.compute_engine import _metadata
request = google.auth.transport.requests.Request()
print(json.dumps({
    "ping": _metadata.ping(request, timeout=20, retry_count=1),
    "preempted": _metadata.get(request, "instance/preempted", timeout=20, retry_count=1),
    "maintenance": _metadata.get(request, "instance/maintenance-event", timeout=20, retry_count=1),
    "missing": _metadata.get(request, "instance/missing", timeout=20, retry_count=1,
                             return_none_for_not_found_error=True),
}))
"""


def google_environment(server: MetadataServer) -> dict[str, str]:
    address = f"127.0.0.1:{server.port}"
    return {"GCE_METADATA_HOST": address, "GCE_METADATA_ROOT": address, "GCE_METADATA_IP": address}


async def test_google_auth_finds_the_metadata_server_and_reads_it(server: MetadataServer) -> None:
    await server.set_google("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")

    said = json.loads(await run_python(GOOGLE_AUTH, google_environment(server)))

    assert said == {
        "ping": True,
        "preempted": "FALSE",
        "maintenance": "TERMINATE_ON_HOST_MAINTENANCE",
        "missing": None,
    }


async def test_google_auth_does_not_take_a_server_without_the_flavor_for_one(server: MetadataServer) -> None:
    server.flavor = None

    assert json.loads(await run_python(GOOGLE_AUTH, google_environment(server)))["ping"] is False


# --- gcp-metadata, on Node -------------------------------------------------------------------------------------------

NODE = """
const gcp = require('gcp-metadata');
(async () => {
  const said = {
    available: await gcp.isAvailable(),
    preempted: await gcp.instance('preempted'),
    changed: await gcp.instance({
      property: 'preempted',
      params: {wait_for_change: 'true', last_etag: 'something-else', timeout_sec: '20'},
    }),
  };
  console.log(JSON.stringify(said));
})().catch(error => { console.error(error); process.exit(1); });
"""


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node finds both packages; npm's own cache makes the second time quick."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("there is no node and npm; apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("node")
    argv = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", *NODE_PACKAGES]
    try:
        npm = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm took more than 90 s for {NODE_PACKAGES}; is there a registry?")
    if npm.returncode != 0:
        pytest.skip(f"npm has not {NODE_PACKAGES}: {npm.stderr[-300:]}")
    return folder


@pytest.mark.slow
async def test_gcp_metadata_of_node_reads_the_server(server: MetadataServer, node_modules: Path) -> None:
    environment = without_proxies({**google_environment(server), "METADATA_SERVER_DETECTION": "ping-only"})

    process = await asyncio.create_subprocess_exec(
        "node", "-e", NODE, cwd=node_modules, env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)

    assert json.loads(output) == {"available": True, "preempted": "FALSE", "changed": "FALSE"}


# --- AWS's own, on Node ----------------------------------------------------------------------------------------------

NODE_AWS = """
const {MetadataService} = require('@aws-sdk/ec2-metadata-service');
const path = 'latest/meta-data/spot/instance-action';
const service = new MetadataService({endpoint: process.argv[1], ec2MetadataV1Disabled: true, retries: 0});
(async () => {
  const none = await service.request(path, {}).then(() => 'one', error => error.$metadata.httpStatusCode);
  const scheduled = await service.request('latest/meta-data/events/maintenance/scheduled', {});
  const bare = new MetadataService({endpoint: process.argv[1], disableFetchToken: true, retries: 0});
  const refused = await bare.request(path, {}).then(() => 'let in', error => error.$metadata.httpStatusCode);
  console.log(JSON.stringify({none, scheduled: JSON.parse(scheduled), refused}));
  process.exit(0);  // it keeps its connections
})().catch(error => { console.error(error); process.exit(1); });
"""


@pytest.mark.slow
async def test_the_client_that_aws_makes_for_node_needs_a_token_and_reads_the_server(
    server: MetadataServer, node_modules: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        "node", "-e", NODE_AWS, server.base, cwd=node_modules, env=without_proxies({}), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)

    assert json.loads(output) == {"none": 404, "scheduled": [], "refused": 401}
    assert server.tokens_made >= 1


# --- TensorFlow ------------------------------------------------------------------------------------------------------

# Its own watcher of machines with GPUs, as PreemptionCheckpointHandler starts it where it finds itself on one. It is
# told that there is a GPU, because the server is what is judged here, not the machine.
TENSORFLOW = """
import json, os, sys, threading, time
import tensorflow as tf
from tensorflow.python.distribute.failure_handling import failure_handling_util as platform

said = {"is_on_google": platform.on_gcp(), "is_leaving": platform.termination_watcher_function_gce()}
platform.detect_platform = lambda: platform.PlatformDevice.GCE_GPU
gone = threading.Event()
handler = tf.distribute.experimental.PreemptionCheckpointHandler(
    None,
    tf.train.Checkpoint(value=tf.Variable(1.0)),
    sys.argv[1],
    tf.distribute.experimental.TerminationConfig(grace_period=0, exit_fn=gone.set),
)
handler.run(time.sleep, 0.01)
print(json.dumps({**said, "is_told": gone.is_set()}), flush=True)
while not gone.is_set():
    handler.run(time.sleep, 0.01)
print(json.dumps(tf.train.latest_checkpoint(sys.argv[1])), flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.tensorflow
async def test_tensorflows_own_watcher_hears_of_maintenance(server: MetadataServer, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        **google_environment(server),
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        TENSORFLOW,
        str(tmp_path / "checkpoints"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(100):
            before = json.loads(await process.stdout.readline())
            await server.set_google("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
            saved = json.loads(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()

    assert before == {"is_on_google": True, "is_leaving": False, "is_told": False}
    assert Path(saved).parent == tmp_path / "checkpoints"
