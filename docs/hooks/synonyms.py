"""Words that people type into the search, by the page that answers them with other words.

The search has no stemming and no spelling but that of the pages. The site shows none of these words; the weight of one
is set in mkdocs.yml (`fields: tags`).
"""

SYNONYMS = {
    "coming-from/torch.md": "DataLoader WeightedRandomSampler worker_init_fn",
    "cookbook/loss-spike.md": "bad skip skipping steps blocklist divergence",
    "cookbook/nnx.md": "haiku linen eqx filter_jit",
    "cookbook/pictures.md": "vision imagenet cifar",
    "cookbook/speech.md": "whisper spectrogram ASR",
    "cookbook/weather.md": "netcdf nc grib era5 climate forecasting series time timestamps",
    "development/support.md": "license licence citation cite bibtex maintainers python 3.14",
    "guides/buckets.md": "bucketing variable length",
    "guides/chunks.md": "reshuffle buffer",
    "guides/costs.md": "cost price bill dollars egress budget",
    "guides/device.md": "float16 half precision mixed cast fp16",
    "guides/hardware.md": "numa arm64 aarch64 grace graviton cuda nvidia pcie",
    "guides/hosts.md": "slow-host slowest",
    "guides/images.md": "imagefolder resize pillow png augment colour color",
    "guides/meshes.md": "pmap pjit shard_map GSPMD FSDP",
    "guides/object-storage.md": "minio gcs azure r2 endpoint boto",
    "guides/orders.md": "ragged imbalanced oversample oversampling undersample class weights weighted reshuffle "
    "visualize visualise picture plot chart",
    "guides/preemption.md": "dead lost died crashed host node heartbeat ctrl c ctrl-c keyboardinterrupt "
    "interrupt spot requeue kill",
    "guides/random.md": "albumentations randomness random_state torchvision transforms seeded",
    "guides/sparse.md": "h5ad scipy csr scanpy single-cell genes recommender",
    "guides/speed.md": "dashboard grafana mlflow wandb tensorboard slow idle why training starved num_workers",
    "guides/splits.md": "stratified stratify k-fold k fold leakage leak holdout held-out cross cross-validation",
    "guides/storage.md": "npy numpy memmap",
    "guides/statistics.md": "normalize normalise normalization normalisation standardize standardise mean variance",
    "guides/tables.md": "None missing fillna dataframe polars arrow",
    "guides/slices.md": "multi-slice multislice dcn ici",
    "guides/video.md": "decord opencv ffmpeg torchcodec pyav clips decode_wav decode_mp4",
    "start/install.md": "mac macos darwin apple silicon windows wheel pip conda cuda",
    "start/which-function.md": "astropy fits mat dicom nifti pickle lmdb sqlite formats",
    "troubleshooting.md": "memory out RAM exhausted crash segfault match",
}
