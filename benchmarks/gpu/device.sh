#!/usr/bin/env bash
# Sourced on a GPU machine without a package index: vLLM from the bundle's parts, the plugin from the checkout.
#   . benchmarks/gpu/device.sh     (parts in .gpu/*/, or /tmp/b from an earlier call)
mkdir -p /tmp/b /tmp/plugin/minipic_sdk-0.1.0.dist-info
for f in .gpu/*/*; do [ -f "$f" ] && cp -n "$f" /tmp/b/; done
if [ -f /tmp/b/part-01 ] && [ ! -f /tmp/site/env.sh ]; then bash /tmp/b/unpack.sh /tmp/b /tmp/site || exit 1; fi
printf 'Metadata-Version: 2.1\nName: minipic-sdk\nVersion: 0.1.0\n' > /tmp/plugin/minipic_sdk-0.1.0.dist-info/METADATA
printf '[vllm.general_plugins]\nminipic = minipic_server.plugin:register\n' > /tmp/plugin/minipic_sdk-0.1.0.dist-info/entry_points.txt
export PYTHONPATH=$PWD/server:$PWD/cli:$PWD:/tmp/plugin
[ -f /tmp/site/env.sh ] && . /tmp/site/env.sh
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=WARNING
gputest() { VLLM_ENABLE_V1_MULTIPROCESSING=0 TORCHDYNAMO_DISABLE=0 OMP_NUM_THREADS=8 python3 -m pytest -q -p no:cacheprovider -c tests/gpu.ini "$@"; }
