OK_FORMAT = True

test = {
 "name": "lab03_guards",
 "points": 1,
 "suites": [
  {
   "cases": [
    {
     "code": ">>> import fuselab.labs\n>>> fuselab.labs.points('lab03.guards') == 1\nTrue",
     "hidden": False,
     "locked": False
    }
   ],
   "scored": True,
   "setup": "",
   "teardown": "",
   "type": "doctest"
  }
 ]
}
