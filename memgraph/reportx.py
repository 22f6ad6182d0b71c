Report=report=reports=None
