"""Function to FX graph: TorchDynamo and AOTAutograd, and what the user sees of them.

What a result is to autograd follows from where it was made: under ``no_grad``, under
``enable_grad``, in inference mode. AOTAutograd hands results out in the mode of the call;
``gradients/result_modes.py`` reads off TorchDynamo's fake tensors what eager hands out, and makes
it so. AOTAutograd sees no inference mode (``graph/simplify/inference_regions.py``).
``number_restarts.py`` keeps TorchDynamo from a second capture, in which it loses updates.
"""
