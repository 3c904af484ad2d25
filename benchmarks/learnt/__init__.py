"""Public silent bugs of TrainCheck's paper, named by what healthy twins teach."""
