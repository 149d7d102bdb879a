"""Flags of published Megatron-LM launch scripts: accepted, ignored with a notice, or refused.

The flags and values are facts taken from the scripts named; shell variables are replaced by plain
values.
"""

import pytest

from fixedcode_megatron.config.cli import read

SCRIPTS = {
    "NVIDIA/Megatron-LM examples/llama/train_llama3_8b_h100_fp8.sh": {
        "flags": """
            --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
            --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128
            --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope
            --rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 --hidden-dropout 0.0
            --swiglu --init-method-std 0.0134 --attention-backend fused --apply-layernorm-1p
            --untie-embeddings-and-output-weights --disable-bias-linear --micro-batch-size 1
            --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748
            --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001 --decoupled-lr 5.0e-4
            --decoupled-min-lr 4.5e-5 --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1
            --adam-beta1 0.9 --adam-beta2 0.95 --bf16 --grad-reduce-in-bf16
            --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc
            --empty-unused-memory-level 1 --exit-duration-in-mins 235 --fp8-format hybrid
            --fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-param-gather
            --tensor-model-parallel-size 1 --context-parallel-size 1 --sequence-parallel
            --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --mock-data
            --tokenizer-type NullTokenizer --vocab-size 128256 --data-cache-path cache
            --tiktoken-pattern v2 --split 99,1,0 --no-create-attention-mask-in-dataloader
            --no-mmap-bin-files --num-workers 1 --log-interval 1 --eval-iters 32
            --eval-interval 100 --save-interval 1000 --log-throughput --profile
            --profile-step-start 4 --profile-step-end 6 --ckpt-format torch_dist
            --distributed-timeout-minutes 60 --save checkpoints --load checkpoints
            --tensorboard-dir logs
        """,
        "ignored": """
            --use-mcore-models --group-query-attention --manual-gc --empty-unused-memory-level
            --no-create-attention-mask-in-dataloader --num-workers --log-throughput
        """,
        "refused": "--mock-data",
        "values": {
            "num_query_groups": 8,
            "layernorm_zero_centered_gamma": True,
            "add_bias_linear": False,
            "train_samples": 1_953_125_000,
            "decoupled_lr": 5e-4,
            "grad_reduce_in_fp32": False,
            "fp8": "hybrid",
            "fp8_param": True,
            "mmap_bin_files": False,
            "distributed_timeout_minutes": 60,
        },
    },
    "swiss-ai/Megatron-LM submit-llama3-8b.sh": {
        "flags": """
            --transformer-impl transformer_engine --use-precision-aware-optimizer
            --main-grads-dtype bf16 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
            --num-attention-heads 32 --group-query-attention --num-query-groups 8
            --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 500000
            --use-rope-scaling --rope-scaling-factor 8 --make-vocab-size-divisible-by 128
            --normalization RMSNorm --swiglu --untie-embeddings-and-output-weights --log-throughput
            --log-progress --tensorboard-dir logs --log-timers-to-tensorboard
            --no-log-loss-scale-to-tensorboard --log-memory-to-tensorboard --attention-dropout 0.0
            --hidden-dropout 0.0 --weight-decay 0.1 --clip-grad 1.0 --adam-beta1 0.9
            --adam-beta2 0.95 --micro-batch-size 1 --global-batch-size 128
            --no-check-for-nan-in-loss-and-grad --train-iters 500 --log-interval 1
            --cross-entropy-loss-fusion --disable-bias-linear --optimizer adam
            --dataloader-type single --manual-gc --manual-gc-interval 500 --seed 28
            --init-method-std 0.008944 --lr 0.00022 --min-lr 0.000022 --lr-decay-style cosine
            --lr-warmup-iters 200 --save checkpoints --save-interval 250 --ckpt-format torch_dist
            --load checkpoints --async-save --bf16 --tensor-model-parallel-size 1
            --pipeline-model-parallel-size 1 --use-distributed-optimizer --overlap-grad-reduce
            --overlap-param-gather --tokenizer-type HuggingFaceTokenizer --tokenizer-model folder
            --split 100,0,0 --seq-length 8192 --num-workers 1 --num-dataset-builder-threads 1
            --data-path prefix --data-cache-path cache --wandb-save-dir logs --wandb-project p
            --wandb-exp-name e
        """,
        "ignored": """
            --group-query-attention --log-throughput --log-progress --log-timers-to-tensorboard
            --no-log-loss-scale-to-tensorboard --log-memory-to-tensorboard --dataloader-type
            --manual-gc --manual-gc-interval --num-workers
            --num-dataset-builder-threads --wandb-save-dir
        """,
        "refused": "--use-rope-scaling --rope-scaling-factor",
        "values": {
            "main_grads_dtype": "bf16",
            "use_precision_aware_optimizer": True,
            "check_for_nan_in_loss_and_grad": False,
            "normalization": "RMSNorm",
            "lr_warmup_iters": 200,
            "wandb_exp_name": "e",
        },
    },
    "llm-jp/Megatron-LM scripts/mdx/1.7B/geniac-1.7B-exp2.sh": {
        "flags": """
            --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1
            --context-parallel-size 1 --sequence-parallel --use-distributed-optimizer
            --distributed-timeout-minutes 15 --num-layers 24 --hidden-size 2048
            --ffn-hidden-size 7168 --num-attention-heads 16 --seq-length 4096
            --max-position-embeddings 4096 --micro-batch-size 2 --global-batch-size 512
            --train-iters 988240 --tokenizer-type Llama2Tokenizer --tokenizer-model file
            --load checkpoints --save checkpoints --data-path 14486363187 a 12799385151 b
            --split 1000,0,0 --data-cache-path cache --distributed-backend nccl
            --init-method-std 0.02 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine
            --lr-decay-iters 986240 --weight-decay 0.1 --clip-grad 1 --lr-warmup-iters 2000
            --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --log-interval 1
            --eval-interval 988240 --eval-iters 0 --bf16 --untie-embeddings-and-output-weights
            --position-embedding-type rope --disable-bias-linear --use-mcore-models
            --normalization RMSNorm --norm-epsilon 1e-5 --no-masked-softmax-fusion
            --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --use-flash-attn
            --recompute-activations --recompute-granularity selective
            --attention-softmax-in-fp32 --transformer-impl transformer_engine --use-mpi
            --use-z-loss --log-throughput --wandb-name job --wandb-project p --wandb-entity e
        """,
        "ignored": "--use-mcore-models --use-mpi --log-throughput",
        "refused": "--tokenizer-type --use-z-loss",
        "values": {
            "layernorm_epsilon": 1e-5,
            "masked_softmax_fusion": False,
            "attention_backend": "flash",
            "recompute_granularity": "selective",
            "attention_softmax_in_fp32": True,
            "data_path": ["14486363187", "a", "12799385151", "b"],
            "wandb_exp_name": "job",
            "wandb_entity": "e",
        },
    },
}


@pytest.mark.parametrize("source", SCRIPTS)
def test_every_flag_has_an_answer(source):
    script = SCRIPTS[source]
    cfg, problems = read(script["flags"].split())
    refused = [problem.split()[0].rstrip(":") for problem in problems]
    assert refused == script["refused"].split()
    assert not any("no such flag" in problem for problem in problems)
    assert [notice.split()[0] for notice in cfg.notices] == script["ignored"].split()
    assert all(len(line.split(": ", 1)[1]) > 10 for line in problems + cfg.notices)  # a reason
    assert {name: cfg.get(name) for name in script["values"]} == script["values"]
