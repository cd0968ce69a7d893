// near saturated instance; far instance comes and goes; one bucket
import {simulate} from './build/test/instances/simulator.js'
for(const [r,far] of [[1000,60],[1000,20],[1000,8],[500,60],[200,60],[100,60]]){
 const sim=await simulate({stack:[{name:'all',rate:r/1000,capacity:r}],count:2,distance:i=>i?0.25:far,sources:[
  {instance:0,keys:['all'],load:{kind:'saturated',depth:Math.ceil(r/10)},onOff:{on:700,off:700}},
  {instance:1,keys:['all'],load:{kind:'saturated',depth:Math.ceil(r/10)}}]})
 await sim.run(15000)
 let cum=0,best=1e9,bt=0,worst=0,info
 for(const {at} of sim.releases){const v=cum-r/1000*at;if(v<best){best=v;bt=at}cum++;const e=cum-r/1000*at-best;if(e>worst){worst=e;info=[bt,at,e]}}
 console.log(`r ${r} far ${far}: excess over r*W ${worst.toFixed(1)}, allowed ${(r*.01+2).toFixed(1)}, window ${info.slice(0,2).map(x=>x.toFixed(0))}; total ${sim.releases.length} of ${15*r}`)
}
