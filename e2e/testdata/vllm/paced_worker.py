"""A worker of vLLM whose steps take as long as a GPU's, whatever the CPU does meanwhile.

A model of random weights is computed on the CPU, whose speed other programs
change from minute to minute. Here a step ends when its time is over, which is
more than the CPU needs: vLLM's scheduler, its queues and its API work as ever, and
what they are given takes the same time today and tomorrow.

    PYTHONPATH=FOLDER vllm serve ... --worker-cls paced_worker.PacedWorker
"""

import time

from vllm.v1.worker.cpu_worker import CPUWorker

# Seconds of a step, and for each token that it computes: several times what a
# CPU takes for a tiny model. Decoding 24 sequences takes 65 ms, a prompt of 700
# tokens another 140 ms.
STEP = 0.060
TOKEN = 0.0002

# A step that begins this soon after the last one's end, in seconds, follows it
# without a pause, as on a GPU that is given its next step while it works.
GAP = 0.040


class PacedWorker(CPUWorker):
    end = 0.0

    def execute_model(self, scheduler_output):
        begin = time.monotonic()
        output = super().execute_model(scheduler_output)
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens == 0:
            return output
        if begin - self.end < GAP:
            begin = self.end
        self.end = max(begin + STEP + TOKEN * tokens, time.monotonic())
        time.sleep(max(self.end - time.monotonic(), 0))
        return output
