"""What a worker of ``keepstep certify`` does beside training."""

import keepstep
from keepstep.torch.integrity.witness import Witness


def test_checkpoints_go_into_the_folder_of_the_job_and_keep_their_settings(tmp_path):
    given = (keepstep.Destination("s3://bucket/run", every_steps=7), keepstep.Destination("/fast", keep_last=None))
    first, second = Witness(None, tmp_path, None).redirected(given)
    assert first == keepstep.Destination(str(tmp_path / "saves" / "0"), every_steps=7)
    assert second == keepstep.Destination(str(tmp_path / "saves" / "1"), keep_last=None)
